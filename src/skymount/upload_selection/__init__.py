"""Which files of a folder are uploaded: content that is uploaded cannot be recalled."""
