"""The contract of the kinds of destinations, and a stage for each kind on its real server."""
