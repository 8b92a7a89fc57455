// Package receipt keeps the durable record of every run: an append-only log of
// JSON lines, each carrying the BLAKE3 of the line before, so that a line
// changed, dropped or inserted later shows.
//
// One line is
//
//	{"schema":"hutch.receipt/v1","id":"...","time":"...","prev":"blake3:<hex>", ...}
//
// where prev covers the bytes of the previous receipt without its newline, and
// is [Genesis] on the first. A line that a crash or a full disk cut short stays
// where it is; the next append ends it and writes a repair before its own line:
//
//	{"schema":"hutch.receipt.repair/v1","id":"repair","time":"...","prev":"blake3:<hex>","torn":"blake3:<hex>","torn_bytes":n}
//
// whose prev is that of the last whole receipt and whose torn covers every byte
// between the two, so that the torn bytes are part of the chain as well.
//
// What the chain cannot show: lines cut off the end, and a log rewritten as a
// whole by someone who may write it.
//
// It may touch: receipts.jsonl in hutch's state directory. It imports no other
// room.
package receipt
