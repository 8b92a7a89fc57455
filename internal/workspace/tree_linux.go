package workspace

import (
	"context"
	"errors"
)

func makeTree(context.Context, Request) (*Branch, error) {
	return nil, errors.New("not yet")
}
