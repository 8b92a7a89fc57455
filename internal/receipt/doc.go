// Package receipt keeps the durable record of every run: an append-only log of
// JSON lines, each carrying the BLAKE3 of the line before, so that a line
// changed, dropped or inserted later shows.
//
// It may touch: receipts.jsonl in hutch's state directory. It imports no other
// room but outcome's vocabulary where needed.
package receipt
