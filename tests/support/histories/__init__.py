"""Histories of operations by several processes on one hierarchy, checked for linearisability."""
