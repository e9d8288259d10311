"""The load harness: many contenders in real processes on one lock or many, measured without leaving out the slow."""
