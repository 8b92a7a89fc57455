package merge

import (
	"math"
	"slices"
)

// maxCells bounds the table of [keptByAll]: 2,000 lines against 2,000.
const maxCells = 4 << 20

// align returns for each line of a its line in b, or -1 where a's line is changed
// or could be.
//
// Lines that repeat let a diff be drawn in several ways, and a merge that is clean
// by one of them may be a conflict by another. So a line counts as kept only where
// every shortest diff keeps it. Texts too large for that are cut at the lines that
// stand once in each.
func align(a, b []rune) []int {
	match := make([]int, len(a))
	for i := range match {
		match[i] = -1
	}
	alignInto(match, a, b, 0)
	unmatchSlides(match, a, b)
	return match
}

// alignInto fills match for a piece of a and the piece of b that begins at from.
func alignInto(match []int, a, b []rune, from int) {
	// What a change next to the shared ends makes doubtful lies close to it.
	const margin = 100
	head, tail := commonEnds(a, b)
	if len(a) != len(b) || head < len(a) {
		head, tail = max(head-margin, 0), max(tail-margin, 0)
	}
	for i := range head {
		match[i] = from + i
	}
	for i := range tail {
		match[len(a)-1-i] = from + len(b) - 1 - i
	}
	match, a, b, from = match[head:len(a)-tail], a[head:len(a)-tail], b[head:len(b)-tail], from+head
	if len(a) == 0 || len(b) == 0 {
		return
	}
	if len(a) <= maxCells/len(b) {
		for _, p := range keptByAll(a, b) {
			match[p.a] = from + p.b
		}
		return
	}
	cuts := anchors(a, b)
	if len(cuts) == 0 {
		return
	}
	i, j := 0, 0
	for _, p := range append(cuts, pair{len(a), len(b)}) {
		alignInto(match[i:p.a], a[i:p.a], b[j:p.b], from+j)
		if p.a < len(a) {
			match[p.a] = from + p.b
		}
		i, j = p.a+1, p.b+1
	}
}

// keptByAll returns the lines that every longest common subsequence has. With ahead and
// behind the lengths of the longest before and after a pair of equal lines, one
// of length n has that pair when the two and the pair make n; and when no other
// such pair has as many ahead of it, all have it.
func keptByAll(a, b []rune) []pair {
	width := len(b) + 1
	behind := make([]uint16, (len(a)+1)*width)
	for i := len(a) - 1; i >= 0; i-- {
		row, next := behind[i*width:], behind[(i+1)*width:]
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				row[j] = next[j+1] + 1
			} else {
				row[j] = max(next[j], row[j+1])
			}
		}
	}
	n := int(behind[0])
	only := make([]pair, n)
	pairs := make([]int, n)
	ahead, row := make([]uint16, width), make([]uint16, width)
	for i := range a {
		for j := range b {
			if a[i] != b[j] {
				row[j+1] = max(ahead[j+1], row[j])
				continue
			}
			row[j+1] = ahead[j] + 1
			if k := int(ahead[j]); k+1+int(behind[(i+1)*width+j+1]) == n {
				only[k] = pair{i, j}
				pairs[k]++
			}
		}
		ahead, row = row, ahead
	}
	kept := only[:0]
	for k, p := range only {
		if pairs[k] == 1 {
			kept = append(kept, p)
		}
	}
	return kept
}

type pair struct{ a, b int }

// anchors returns the lines that stand once in each text and that no other such
// line crosses. They cut large texts into pieces.
func anchors(a, b []rune) []pair {
	type places struct{ n, at int }
	count := func(lines []rune) map[rune]places {
		m := make(map[rune]places, len(lines))
		for i, line := range lines {
			m[line] = places{m[line].n + 1, i}
		}
		return m
	}
	inA, inB := count(a), count(b)
	var once []pair
	for i, line := range a {
		if inA[line].n == 1 && inB[line].n == 1 {
			once = append(once, pair{i, inB[line].at})
		}
	}
	after := make([]int, len(once)+1) // the smallest b from here on
	after[len(once)] = math.MaxInt
	for i := len(once) - 1; i >= 0; i-- {
		after[i] = min(once[i].b, after[i+1])
	}
	var straight []pair
	before := -1
	for i, p := range once {
		if before < p.b && p.b < after[i+1] {
			straight = append(straight, p)
		}
		before = max(before, p.b)
	}
	return straight
}

// unmatchSlides takes the lines out of match over which an insertion or deletion
// can slide: "x" added behind an "x" may as well stand before it.
func unmatchSlides(match []int, a, b []rune) {
	original := slices.Clone(match)
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		if i < len(a) && original[i] == j {
			i, j = i+1, j+1
			continue
		}
		endA, endB := i, len(b)
		for endA < len(a) && original[endA] < 0 {
			endA++
		}
		if endA < len(a) {
			endB = original[endA]
		}
		// One of the two is empty, or nothing slides.
		if text, start, end := slid(a, b, i, endA, j, endB); text != nil {
			for n := 0; endA+n < len(a) && original[endA+n] == endB+n && text[start+n] == text[end+n]; n++ {
				match[endA+n] = -1
			}
			for n := 1; i-n >= 0 && original[i-n] == j-n && text[start-n] == text[end-n]; n++ {
				match[i-n] = -1
			}
		}
		i, j = endA, endB
	}
}

func slid(a, b []rune, i, endA, j, endB int) (text []rune, start, end int) {
	switch {
	case i == endA:
		return b, j, endB
	case j == endB:
		return a, i, endA
	}
	return nil, 0, 0
}

func commonEnds(a, b []rune) (head, tail int) {
	n := min(len(a), len(b))
	for head < n && a[head] == b[head] {
		head++
	}
	for tail < n-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head, tail
}
