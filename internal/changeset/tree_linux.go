package changeset

import "errors"

func (r *reader) readTree() error { return errors.New("not yet") }
