# Every target is a command of ./dev, where the work is done: `make test` is `./dev test`; ARGS="…" goes along.
COMMANDS := demo run test check bench install
.PHONY: $(COMMANDS)
.DEFAULT_GOAL := demo
$(COMMANDS):
	@./dev $@ $(ARGS)
