"""Which rotations each head needs: a plan for partial RoPE or latent attention, from one measurement."""
