"""The inside of a batch stream, which trainers use as `rolloutlog.consumers.trainer`.

pure       collector (what makes a step), admission, sample_checks, overlong, step, padding, advantages, acked
in thread  prefetch, reader_owner, parts, work, awaited
"""
