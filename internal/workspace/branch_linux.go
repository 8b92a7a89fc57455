package workspace

import (
	"context"
	"fmt"
)

// Make makes a branch of the workspace in the box's directory. On an error, or
// when ctx ends, nothing of it is left there.
func Make(ctx context.Context, req Request) (*Branch, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch req.Strategy {
	case Overlay:
		return makeOverlay(req)
	case Reflink, Copy:
		return makeTree(ctx, req)
	}
	return nil, fmt.Errorf("make a branch: %q is not a strategy; choose %s, %s or %s", req.Strategy, Overlay, Reflink, Copy)
}
