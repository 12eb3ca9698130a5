"""The sm90 family (wgmma, TMA): configurations, legality and declared sets."""
