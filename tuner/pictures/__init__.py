"""Pictures and tables of winners: the engine's time, the tuned one and the least possible one."""
