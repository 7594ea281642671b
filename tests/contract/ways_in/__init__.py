"""What every way in promises, and a stage for each kind on its real server."""
