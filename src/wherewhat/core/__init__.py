"""Pure tensor mathematics: rotation, placement, scores, exclusion, frequency. Of other libraries it imports only torch.

Shape legend, used everywhere:
B batch, L attention layer, H query head, K key/value head, N keys before the query, D head dimension,
F frequencies, M blocks, W tokens a block. `...` stands for any leading axes, usually (B, H) or (B, H, F).
"""
