"""The sm80 family (mma.sync, cp.async): configurations, legality and declared sets."""
