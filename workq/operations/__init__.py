"""Operations: what a person may decide."""
