"""Two outputs side by side.

reads  reading, made (how an output came to be)
pure   held (what is kept of a batch), pairing, sides, comparison and what it is made of: rewards, samples, advantages,
       endings, each from values, spread and largest
shows  lines, reward_lines, as_json
"""
