"""Readers of recorded traffic: files of many formats as columns, exactly, with faults by line."""
