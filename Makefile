# The same names as the programs in scripts/, for those who type make.
.PHONY: setup quickstart test test-all check fix bench docs

setup quickstart test check bench:
	scripts/$@

test-all:
	scripts/test --all

fix:
	scripts/check --fix

bench-%:
	scripts/bench $*

docs:
	.venv/bin/python docs/generate.py --write
