"""The keys of the spec language, as frozen pydantic models."""
