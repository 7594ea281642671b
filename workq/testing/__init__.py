"""What tests use: private servers (`workq.testing.servers`) that nobody else can reach or disturb."""
