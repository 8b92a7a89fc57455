package main

import (
	"fmt"
	"math"
	"strings"
)

// plot is what is drawn: three panels side by side.
type plot struct {
	floor, warm *contestant
	quiet, busy []*contestant
	rates       []rate
}

// rate is how many commands a second so many clients got.
type rate struct {
	clients    int
	got, floor float64
}

const (
	panelW, panelH = 300, 240
	left, top, gap = 66, 64, 84
)

const (
	ours = "#1f5fa8"
	bare = "#b4552d"
	grey = "#6d7b8a"
)

// axes places values in a panel; logarithmic where it is said.
type axes struct {
	x0             float64
	minX, maxX     float64
	minY, maxY     float64
	logX, logY     bool
	title, of, per string
}

func on(v, from, to float64, log bool) float64 {
	if log {
		return math.Log(max(v, from)/from) / math.Log(to/from)
	}
	return (v - from) / (to - from)
}

func (a axes) x(v float64) float64 { return a.x0 + panelW*on(v, a.minX, a.maxX, a.logX) }
func (a axes) y(v float64) float64 { return top + panelH - panelH*on(v, a.minY, a.maxY, a.logY) }

func (a axes) frame(b *strings.Builder, xs, ys []float64) {
	for _, v := range xs {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#e6e6e6"/><text x="%.1f" y="%d" text-anchor="middle" fill="#555">%g</text>
`, a.x(v), top, a.x(v), top+panelH, a.x(v), top+panelH+16, v)
	}
	for _, v := range ys {
		fmt.Fprintf(b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#e6e6e6"/><text x="%.1f" y="%.1f" text-anchor="end" fill="#555">%g</text>
`, a.x0, a.y(v), a.x0+panelW, a.y(v), a.x0-6, a.y(v)+4, v)
	}
	fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%d" height="%d" fill="none" stroke="#999"/><text x="%.1f" y="%d" text-anchor="middle" fill="#555">%s</text><text x="%.1f" y="%d" font-weight="bold" fill="#222">%s</text><text x="%.1f" y="%d" fill="#555">%s</text>
`, a.x0, top, panelW, panelH, a.x0+panelW/2, top+panelH+34, a.of, a.x0, top-24, a.title, a.x0, top-8, a.per)
}

func (a axes) line(b *strings.Builder, colour, dash, name string, xs, ys []float64) {
	var points, dots strings.Builder
	for i := range xs {
		fmt.Fprintf(&points, "%.1f,%.1f ", a.x(xs[i]), a.y(ys[i]))
		if dash == "" && len(xs) < 20 {
			fmt.Fprintf(&dots, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, a.x(xs[i]), a.y(ys[i]), colour)
		}
	}
	last := len(xs) - 1
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-dasharray="%s"/>%s<text x="%.1f" y="%.1f" text-anchor="end" fill="%s">%s</text>
`, points.String(), colour, dash, dots.String(), a.x(xs[last])-4, a.y(ys[last])-7, colour, name)
}

func (p *plot) svg() string {
	var b strings.Builder
	width, height := left+3*(panelW+gap), top+panelH+60
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="#ffffff"/>
<text x="%d" y="22" font-size="16" font-weight="bold" fill="#222">Boxes that live, asked over HTTP on the unix socket</text>
`, width, height, width, height, left)

	// How long a warm command takes: each percentile.
	a := axes{x0: left, minX: 0, maxX: 100, minY: 0.1, maxY: 100, logY: true, title: "A command", of: "percentile", per: "ms, p0 to p99.9"}
	a.frame(&b, []float64{0, 25, 50, 75, 99}, []float64{0.1, 1, 10, 100})
	for _, c := range []struct {
		of           *contestant
		colour, name string
	}{{p.floor, bare, "vfork, exec, wait"}, {p.warm, ours, "in a box"}} {
		var xs, ys []float64
		for q := 0.0; q <= 99.9; q += 0.5 {
			xs, ys = append(xs, q), append(ys, float64(c.of.times[int(float64(len(c.of.times)-1)*q/100)].Microseconds())/1000)
		}
		a.line(&b, c.colour, "", c.name, xs, ys)
	}

	a = axes{x0: left + panelW + gap, minX: 1, maxX: 64, logX: true, minY: 0, maxY: 1, title: "Throughput", of: "clients at once", per: "commands a second"}
	var xs, got, floor, half []float64
	for _, r := range p.rates {
		xs, got, floor, half = append(xs, float64(r.clients)), append(got, r.got), append(floor, r.floor), append(half, r.floor/2)
		a.maxY = max(a.maxY, 1.15*r.floor, 1.15*r.got)
	}
	step := math.Pow(10, math.Floor(math.Log10(a.maxY)))
	var ys []float64
	for v := 0.0; v < a.maxY; v += step / 2 {
		ys = append(ys, v)
	}
	a.frame(&b, xs, ys)
	a.line(&b, bare, "", "vfork, exec, wait on all cores", xs, floor)
	a.line(&b, grey, "5 4", "half of that", xs, half)
	a.line(&b, ours, "", "hutchd", xs, got)

	a = axes{x0: left + 2*(panelW+gap), minX: 10, maxX: 10_000, logX: true, minY: 0.1, maxY: 10_000, logY: true, title: "A checkpoint", of: "files changed", per: "ms, p50"}
	a.frame(&b, []float64{10, 100, 1000, 10_000}, []float64{0.1, 1, 10, 100, 1000, 10_000})
	for _, c := range []struct {
		of           []*contestant
		colour, name string
	}{{p.busy, bare, "a busy box: copied"}, {p.quiet, ours, "a quiet box: frozen"}} {
		var xs, ys []float64
		for i, one := range c.of {
			xs, ys = append(xs, float64(changes[i])), append(ys, float64(one.at(50))/1000)
		}
		a.line(&b, c.colour, "", c.name, xs, ys)
	}
	b.WriteString("</svg>\n")
	return b.String()
}
