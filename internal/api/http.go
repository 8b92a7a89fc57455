package api

import (
	"encoding/json"
	"time"

	"hutch/internal/outcome"
)

// Problem is an error as hutchd answers it: application/problem+json, RFC 9457.
type Problem struct {
	Title    string          `json:"title" doc:"the kind of problem"`
	Status   int             `json:"status" doc:"of the response"`
	Detail   string          `json:"detail" doc:"one line that says what is wrong and what to do"`
	Code     Code            `json:"code" doc:"the kind of problem, for programs"`
	Errors   []ProblemAt     `json:"errors,omitempty" doc:"each part of the request that makes no sense"`
	Delivery json.RawMessage `json:"delivery,omitempty" doc:"what came of a commit that was not made, as of POST /v1/boxes/{box}/commit"`
}

// ProblemAt is what is wrong with one part of a request.
type ProblemAt struct {
	Location string `json:"location" doc:"such as body.argv[2]"`
	Message  string `json:"message"`
}

// Event is one line of the stream of a command: first that it has started, then
// pieces of its output, last its outcome or an error. A WebSocket has all but
// the output as text frames.
type Event struct {
	Exec    *Exec            `json:"exec,omitempty" doc:"the command, when it has started"`
	Stream  string           `json:"stream,omitempty" enum:"stdout,stderr"`
	Data    string           `json:"data,omitempty" doc:"a piece of output"`
	Base64  []byte           `json:"base64,omitempty" doc:"a piece of output that is not UTF-8"`
	Outcome *outcome.Outcome `json:"outcome,omitempty"`
	Error   *Problem         `json:"error,omitempty"`
}

// Input is a text frame that a client of a WebSocket sends. One field is set.
type Input struct {
	Resize *Size  `json:"resize,omitempty"`
	Signal string `json:"signal,omitempty" doc:"a name such as INT, or a number"`
	EOF    bool   `json:"eof,omitempty" doc:"there is no more input"`
}

// Version is that of this protocol. A program and a daemon of different ones do
// not understand each other.
const Version = 1

// Status is what is known of the daemon.
type Status struct {
	Version  string        `json:"version"`
	API      int           `json:"api" doc:"the version of this protocol"`
	PID      int           `json:"pid"`
	Started  time.Time     `json:"started"`
	StateDir string        `json:"state_dir"`
	Listen   []string      `json:"listen"`
	Boxes    map[State]int `json:"boxes" doc:"by state; ended ones are not counted"`
	Live     int           `json:"live" doc:"boxes that have a jail"`
	Memory   int64         `json:"memory" doc:"bytes promised to live boxes"`
	Running  int           `json:"running" doc:"commands that run"`
	Waiting  int           `json:"waiting" doc:"commands that wait for their turn"`
	Draining bool          `json:"draining" doc:"it is about to end"`
	Limits   StatusLimits  `json:"limits"`
}

// StatusLimits are what a daemon admits; 0 is no limit.
type StatusLimits struct {
	Boxes   int     `json:"boxes" doc:"live boxes"`
	Memory  int64   `json:"memory" doc:"bytes promised to them"`
	Running int     `json:"running" doc:"commands"`
	Queue   int     `json:"queue" doc:"commands that may wait, of one client"`
	Idle    float64 `json:"idle_seconds" doc:"after which the daemon ends"`
}

// CheckpointRequest asks for a checkpoint.
type CheckpointRequest struct {
	Name string `json:"name,omitempty" doc:"one is made up when it is empty"`
}

// RestoreRequest asks to go back to one.
type RestoreRequest struct {
	Name string `json:"name" minLength:"1"`
}

// ForkRequest asks for forks of a box.
type ForkRequest struct {
	Count int      `json:"count,omitempty" minimum:"0" maximum:"1000" doc:"1 when it is 0"`
	Names []string `json:"names,omitempty" doc:"as many as forks, or none"`
}

// Discard asks to drop a box.
type Discard struct {
	Force bool `json:"force,omitempty" doc:"end what runs in it"`
}
