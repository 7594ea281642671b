"""Lab: private servers, measurements and the fault suite. No worker imports it."""
