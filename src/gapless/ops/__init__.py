"""Operations of fixed size: drop-in counterparts of lines that make the host wait."""
