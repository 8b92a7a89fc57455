package daemon

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"hutch/internal/api"
)

// tunnelProtocol is what a client asks to upgrade to.
const tunnelProtocol = "hutch-tunnel"

// tunnelIdle is how long a tunnel may be silent after one side has said all
// that it had to.
const tunnelIdle = 10 * time.Minute

type portInput struct {
	BoxPath
	Port uint16 `path:"port" minimum:"1" maximum:"65535"`
}

func (s *Server) portRoutes() {
	register(s, operation("GET", "/v1/boxes/{box}/ports", "list-ports", "List the ports that something in a box listens at", ofBox), func(_ context.Context, in *BoxPath) (*reply[[]api.Port], error) {
		list, err := s.boxes.Ports(in.Box)
		return &reply[[]api.Port]{orEmpty(list)}, err
	})
	tunnel := operation("GET", "/v1/boxes/{box}/ports/{port}/tunnel", "tunnel", "A connection to a port of a box: ask for an upgrade to "+tunnelProtocol, ofLive)
	tunnel.Errors = append(tunnel.Errors, http.StatusUpgradeRequired)
	tunnel = answers(tunnel, "101", "raw bytes in both directions follow", nil)
	register(s, tunnel, s.tunnel)

	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		id := "proxy"
		if method != "GET" {
			id += "-" + strings.ToLower(method)
		}
		proxy := operation(method, "/v1/boxes/{box}/ports/{port}/proxy/{path}", id, "A request to an HTTP server in a box", nil)
		proxy.Errors = append(slices.Clone(ofLive), http.StatusBadGateway)
		proxy.Parameters = []*huma.Param{
			{Name: "box", In: "path", Required: true, Schema: text()},
			{Name: "port", In: "path", Required: true, Schema: &huma.Schema{Type: "integer"}},
			{Name: "path", In: "path", Required: true, Schema: text(), Description: "what follows, slashes included, is asked of the box"},
		}
		if slices.Contains([]string{"POST", "PUT", "PATCH"}, method) {
			proxy.RequestBody = &huma.RequestBody{Description: "what the server is sent", Content: map[string]*huma.MediaType{"*/*": {Schema: &huma.Schema{}}}}
		}
		s.describe(answers(proxy, "200", "what the server answers, whatever its status", map[string]*huma.Schema{"*/*": {}}))
	}
	s.mux.Handle("/v1/boxes/{box}/ports/{port}/proxy/{path...}", s.proxy)
}

// dial connects to a port of a box.
func (s *Server) dial(ctx context.Context, ref string, port uint16) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, s.patience.stall)
	defer cancel()
	conn, err := s.boxes.Dial(ctx, ref, port)
	var known *api.Error
	if err != nil && !errors.As(err, &known) {
		return nil, newProblem(http.StatusBadGateway, api.NotFound, fmt.Sprintf("port %d of the box: %v", port, err))
	}
	return conn, err
}

func (s *Server) tunnel(ctx context.Context, in *portInput) (*raw, error) {
	return &raw{func(c huma.Context) {
		r, w := humago.Unwrap(c)
		if !strings.EqualFold(r.Header.Get("Upgrade"), tunnelProtocol) {
			w.Header().Set("Upgrade", tunnelProtocol)
			writeProblem(w, newProblem(http.StatusUpgradeRequired, api.Invalid, "ask for an upgrade to "+tunnelProtocol))
			return
		}
		there, err := s.dial(ctx, in.Box, in.Port)
		if err != nil {
			writeProblem(w, err)
			return
		}
		defer there.Close()
		here, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			writeProblem(w, err)
			return
		}
		defer here.Close()
		s.work.Add(1)
		defer s.work.Add(-1)
		// The end of the daemon ends it; net/http watches it no more.
		defer context.AfterFunc(ctx, func() { here.Close(); there.Close() })()
		if _, err := io.WriteString(here, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+tunnelProtocol+"\r\n\r\n"); err != nil {
			return
		}
		join(here, buf.Reader, there)
	}}, nil
}

// join copies both ways until both sides have ended, or one fails.
func join(here net.Conn, buffered *bufio.Reader, there net.Conn) {
	var both sync.WaitGroup
	one := func(to net.Conn, from net.Conn, r io.Reader) {
		_, err := io.Copy(to, r)
		closer, ok := to.(interface{ CloseWrite() error })
		if err != nil || !ok || closer.CloseWrite() != nil {
			to.Close()
			from.Close()
		}
		// What the other side still has to say must come in time.
		_ = to.SetReadDeadline(time.Now().Add(tunnelIdle))
	}
	// Past what net/http has read ahead its own reader is not used: that takes the
	// end of what the client says for the end of the request.
	read := io.MultiReader(io.LimitReader(buffered, int64(buffered.Buffered())), here)
	both.Go(func() { one(there, here, read) })
	both.Go(func() { one(here, there, there) })
	both.Wait()
}

type proxyKey struct{}

// proxyDepth is how many slashes are before what is asked of a box:
// /v1/boxes/BOX/ports/PORT/proxy/. No name is looked for: a box may have any.
const proxyDepth = 7

func afterSlashes(path string, n int) string {
	for ; n > 0; n-- {
		_, path, _ = strings.Cut(path, "/")
	}
	return path
}

// newProxy makes what hands requests to servers in boxes. It keeps no idle
// connection: that would be a descriptor and two goroutines a box.
func (s *Server) newProxy() http.Handler {
	proxy := &httputil.ReverseProxy{
		Transport: &http.Transport{
			DisableKeepAlives: true, DisableCompression: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				to := ctx.Value(proxyKey{}).(portInput)
				return s.dial(ctx, to.Box, to.Port)
			},
		},
		Rewrite: func(p *httputil.ProxyRequest) {
			to := p.In.Context().Value(proxyKey{}).(portInput)
			escaped := p.In.URL.EscapedPath()
			rest := afterSlashes(escaped, proxyDepth)
			path, err := url.PathUnescape("/" + rest)
			if err != nil {
				path = "/"
			}
			p.Out.URL.Scheme, p.Out.URL.Host = "http", net.JoinHostPort("localhost", strconv.Itoa(int(to.Port)))
			p.Out.URL.Path, p.Out.URL.RawPath = path, "/"+rest
			p.Out.Host = p.Out.URL.Host
			p.Out.Header.Set("X-Forwarded-Prefix", strings.TrimSuffix(escaped, rest))
			if !peerIn(p.In.Context()).unix {
				p.Out.Header.Del("Authorization") // the token is not for what runs in a box
			}
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			var known *problem
			var ours *api.Error
			if !errors.As(err, &known) && !errors.As(err, &ours) {
				err = newProblem(http.StatusBadGateway, api.Internal, fmt.Sprintf("the server in the box: %v", err))
			}
			writeProblem(w, err)
		},
		FlushInterval: -1,
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		port, err := strconv.ParseUint(r.PathValue("port"), 10, 16)
		if err != nil || port == 0 {
			writeProblem(w, refuse(api.Invalid, fmt.Sprintf("%q is not a port: give 1 to 65535", r.PathValue("port"))))
			return
		}
		ctx := context.WithValue(r.Context(), proxyKey{}, portInput{BoxPath{r.PathValue("box")}, uint16(port)})
		proxy.ServeHTTP(w, r.WithContext(ctx))
	})
}
