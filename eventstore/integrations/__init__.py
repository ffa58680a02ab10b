"""Recording what agent frameworks do. Each module needs its framework, an extra of this package."""
