"""The program that forks once per call. It runs as `python <this folder>`, never imported whole.

Its owner imports only `wire` and `scratch`, which need nothing from their siblings.
"""
