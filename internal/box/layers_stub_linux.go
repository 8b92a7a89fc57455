package box

func (h *held) unref(uses map[string]bool) error { return nil }
