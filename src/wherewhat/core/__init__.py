"""Pure tensor mathematics: rotation, placement, scores, exclusion, frequency. Imports only torch and jaxtyping.

Shape legend, used everywhere:
B batch, L attention layer, H query head, N keys before the query, F frequencies, M blocks, D head dimension,
E ensemble member. Also K key/value head, T tokens of a prompt, Q captured queries, W tokens per block, V vocabulary.
`...` and `*lead` stand for any leading axes, usually (B, H) or (B, H, F).
"""
