package api

import (
	"encoding/json"

	"hutch/internal/outcome"
)

// Race asks for commands side by side, each in a box of its own; the change of
// one of them is kept.
type Race struct {
	// One of these three says where the racers run.
	Boxes  []string `json:"boxes,omitempty" doc:"boxes that are there, one a racer"`
	Box    string   `json:"box,omitempty" doc:"a box to fork, once a racer"`
	Create *Create  `json:"create,omitempty" doc:"a box to make and fork; it is dropped at the end"`
	Count  int      `json:"count,omitempty" minimum:"0" maximum:"256" doc:"racers; as many as there are runs or boxes by default"`
	// One of these two says what they run.
	Run  *Run  `json:"run,omitempty" doc:"what each of them runs"`
	Runs []Run `json:"runs,omitempty" doc:"what each of them runs, one a racer"`

	Score     *Run   `json:"score,omitempty" doc:"a command that runs in the box of each racer that succeeded; the last line of its output is a number, and the highest wins. Without it the first success wins, and ends the others"`
	Keep      bool   `json:"keep,omitempty" doc:"no racer's box is committed or discarded"`
	Commit    Commit `json:"commit,omitzero" doc:"how the winner is promoted"`
	NoDiscard bool   `json:"no_discard,omitempty" doc:"the winner is committed, the other boxes stay"`
}

// Racer is what became of one of them.
type Racer struct {
	Box     string           `json:"box"`
	Argv    []string         `json:"argv"`
	Won     bool             `json:"won"`
	Score   *float64         `json:"score,omitempty"`
	Outcome *outcome.Outcome `json:"outcome,omitempty" doc:"absent where nothing was started"`
	Fate    string           `json:"fate" enum:"committed,kept,discarded" doc:"what became of its box"`
	Error   string           `json:"error,omitempty"`
}

// RaceResult is what came of a race.
type RaceResult struct {
	Winner   string          `json:"winner" doc:"the box that won; empty when none succeeded"`
	Racers   []Racer         `json:"racers"`
	Delivery json.RawMessage `json:"delivery,omitempty" doc:"what came of the winner's commit, as of POST /v1/boxes/{box}/commit"`
	Error    string          `json:"error,omitempty" doc:"why the winner was not committed"`
}
