"""Calls the function of this program that the command line names, with the other words."""

import sys


def main(functions: dict) -> None:
    name, *words = sys.argv[1:]
    functions[name](*words)
