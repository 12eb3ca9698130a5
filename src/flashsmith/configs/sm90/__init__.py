"""What the sm90 family (wgmma, TMA) can build."""
