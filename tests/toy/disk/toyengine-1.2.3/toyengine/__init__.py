raise ImportError("engines are read, never imported")
