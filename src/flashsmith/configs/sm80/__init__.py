"""What the sm80 family (mma.sync, cp.async) can build."""
