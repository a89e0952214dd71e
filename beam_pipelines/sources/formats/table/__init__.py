"""Source `table`: CSV, JSON Lines and Parquet."""
