"""What is known of a skyfile: its listing, its layout, and their form on disk."""
