"""Other systems that have a say, translated: pure functions between their objects and our values. So far: Kueue."""
