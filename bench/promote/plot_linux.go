package main

import (
	"fmt"
	"math"
	"strings"
)

// The plot: one panel for each file system, both axes logarithmic.
const (
	panelW, panelH = 380, 250
	left, top      = 62, 70
	gapX, gapY     = 70, 74
	fewest, most   = 1.0, 100_000.0 // changes
	lowest, upmost = 0.1, 100_000.0 // milliseconds
)

var lines = []struct {
	name, colour, dash string
	of                 func(*row) series
}{
	{"bare: write, fsync, rename each", "#b4552d", "", func(r *row) series { return r.Bare }},
	{"promotion, all or nothing", "#1f5fa8", "", func(r *row) series { return r.Promote }},
	{"hutch commit, whole process", "#6d7b8a", "5 4", func(r *row) series { return r.Whole }},
}

func plot(rows []*row) string {
	var names []string
	for _, r := range rows {
		if len(names) == 0 || names[len(names)-1] != r.FS {
			names = append(names, r.FS)
		}
	}
	columns := min(2, len(names))
	width, height := left+columns*(panelW+gapX)-10, top+(len(names)+1)/2*(panelH+gapY)+6
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="%d" y="26" font-size="17" font-weight="bold" fill="#222">What a durable promotion costs, against the number of changed files</text>
`, width, height, width, height, left)
	x := left
	for _, l := range lines {
		fmt.Fprintf(&b, `<line x1="%d" y1="44" x2="%d" y2="44" stroke="%s" stroke-width="2.5" stroke-dasharray="%s"/><text x="%d" y="48" fill="#333">%s</text>
`, x, x+26, l.colour, l.dash, x+32, l.name)
		x += 52 + 7*len(l.name)
	}
	for i, name := range names {
		panel(&b, name, rows, float64(left+i%2*(panelW+gapX)), float64(top+i/2*(panelH+gapY)))
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func panel(b *strings.Builder, fs string, rows []*row, x0, y0 float64) {
	px := func(changes float64) float64 {
		return x0 + panelW*math.Log10(changes/fewest)/math.Log10(most/fewest)
	}
	py := func(ms float64) float64 {
		return y0 + panelH - panelH*math.Log10(max(ms, lowest)/lowest)/math.Log10(upmost/lowest)
	}
	fmt.Fprintf(b, `<text x="%.0f" y="%.0f" font-weight="bold" fill="#222">%s</text>
`, x0+8, y0+18, fs)
	for c := fewest; c <= most; c *= 10 {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#e6e6e6"/><text x="%.1f" y="%.1f" text-anchor="middle" fill="#555">%s</text>
`, px(c), y0, px(c), y0+panelH, px(c), y0+panelH+17, short(c))
	}
	for ms := lowest; ms <= upmost*1.01; ms *= 10 {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#e6e6e6"/><text x="%.1f" y="%.1f" text-anchor="end" fill="#555">%s</text>
`, x0, py(ms), x0+panelW, py(ms), x0-7, py(ms)+4, duration(ms))
	}
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%d" height="%d" fill="none" stroke="#999"/><text x="%.1f" y="%.1f" text-anchor="middle" fill="#555">changed files</text>
`, x0, y0, panelW, panelH, x0+panelW/2, y0+panelH+36)
	for _, l := range lines {
		var points, dots strings.Builder
		for _, r := range rows {
			s := l.of(r)
			if r.FS != fs || len(s) == 0 {
				continue
			}
			x, y := px(float64(r.Changes)), py(s.at(50))
			fmt.Fprintf(&points, "%.1f,%.1f ", x, y)
			// A whisker up to the 99th percentile.
			fmt.Fprintf(&dots, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" stroke-opacity="0.45" stroke-width="1.5"/><circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>
`, x, y, x, py(s.at(99)), l.colour, x, y, l.colour)
		}
		fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>
%s`, points.String(), l.colour, l.dash, dots.String())
	}
}

func short(c float64) string {
	if c >= 1000 {
		return fmt.Sprintf("%.0fk", c/1000)
	}
	return fmt.Sprintf("%.0f", c)
}

func duration(ms float64) string {
	if ms >= 999 {
		return fmt.Sprintf("%.0f s", ms/1000)
	}
	return fmt.Sprintf("%.3g ms", ms)
}
