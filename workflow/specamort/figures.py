def figure_paths(r): return []
