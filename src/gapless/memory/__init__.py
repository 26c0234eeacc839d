"""The caching allocator, replayed. Without torch."""
