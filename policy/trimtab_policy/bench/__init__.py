"""Published numbers: what each of them is made with (`bench.yaml`), and the tables that come out (`report`)."""
