"""What the demo's processes agree on."""

READER = "trainer"  # the trainer's name in the acks topic

GROUP_SIZE = 8  # rollouts of one task that are compared with each other
GROUPS_PER_STEP = 16
MAX_STALENESS = 8  # policy versions; older samples are not trained on
LAG_MAX = 3 * GROUPS_PER_STEP  # records of batches that are not acknowledged; on Kafka a batch counts as up to two

TOKEN_S = 0.0004  # for writing one, as a model would take: it leaves the cores to the other processes

SOLVED = 0.9  # mean final reward with which the demo has learned
ENOUGH = 0.95  # with which the hosts stop: above SOLVED, for what is under way then
RECENT = 512  # over so many rollouts: four steps' worth
STEPS_MAX = 100  # three times what it takes
