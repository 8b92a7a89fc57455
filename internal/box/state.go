package box

import (
	"fmt"
	"slices"

	"hutch/internal/api"
)

// moves are the allowed moves of a box, by where it stands. What leaves it where
// it is (a look, a checkpoint, a fork) is a move to the same state.
//
//	created ─► ready ◄─► busy          any but committing ─► failed
//	   │         │ ▲                    created, ready, busy, failed ─► discarded
//	   └────►    ▼ │ conflict, held, kept
//	         committing ─► committed
var moves = map[api.State][]api.State{
	api.Created:    {api.Created, api.Ready, api.Busy, api.Committing, api.Discarded, api.Failed},
	api.Ready:      {api.Ready, api.Busy, api.Committing, api.Discarded, api.Failed},
	api.Busy:       {api.Ready, api.Busy, api.Discarded, api.Failed},
	api.Committing: {api.Ready, api.Committed, api.Discarded, api.Failed},
	api.Failed:     {api.Discarded},
	api.Committed:  {},
	api.Discarded:  {},
}

// advice says what to do with a box that stands in a state and cannot be moved
// on from it as was asked.
var advice = map[api.State]string{
	api.Created:    "run something in it first",
	api.Ready:      "run something in it first",
	api.Busy:       "wait for its commands, or end them with `hutch box kill %s`",
	api.Committing: "let that end; after a crash `hutch commit %s` finishes it",
	api.Failed:     "`hutch discard %s` drops it",
	api.Committed:  "make another with `hutch box create`",
	api.Discarded:  "make another with `hutch box create`",
}

// move reports whether a box may go from one state to another, as an
// *api.Error that names both.
func move(id string, from, to api.State) error {
	if slices.Contains(moves[from], to) {
		return nil
	}
	do := advice[from]
	if do == "" {
		do = "this hutch does not know that state; use the one that wrote it"
	} else if slices.Contains([]api.State{api.Busy, api.Committing, api.Failed}, from) {
		do = fmt.Sprintf(do, id)
	}
	code := api.WrongState
	if from == api.Busy {
		code = api.NotQuiet
	}
	return &api.Error{Code: code, Text: fmt.Sprintf("box %s is %s, and from there it cannot become %s; %s", id, from, to, do)}
}
