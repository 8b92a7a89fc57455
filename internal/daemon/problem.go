package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"hutch/internal/api"
)

// problem is an api.Problem as an error that huma and net/http answer with.
type problem struct {
	api.Problem
	retryAfter int // seconds; 0: no header
}

func (p *problem) Error() string  { return p.Detail }
func (p *problem) GetStatus() int { return p.Status }

// GetHeaders tells huma which headers to answer with.
func (p *problem) GetHeaders() http.Header {
	if p.retryAfter == 0 {
		return nil
	}
	return http.Header{"Retry-After": {strconv.Itoa(p.retryAfter)}}
}

// ContentType tells huma which type to answer with.
func (p *problem) ContentType(string) string { return problemType }

// MarshalJSON writes the problem alone.
func (p *problem) MarshalJSON() ([]byte, error) { return json.Marshal(p.Problem) }

// Schema tells huma that the JSON is an api.Problem.
func (p *problem) Schema(r huma.Registry) *huma.Schema { return schemaOf[api.Problem](r) }

const problemType = "application/problem+json"

// statusOf says which status an error's code has in HTTP.
var statusOf = map[api.Code]int{
	api.NotFound:    http.StatusNotFound,
	api.Ambiguous:   http.StatusConflict,
	api.WrongState:  http.StatusConflict,
	api.InUse:       http.StatusConflict,
	api.NotQuiet:    http.StatusConflict,
	api.Exists:      http.StatusConflict,
	api.Conflicting: http.StatusConflict,
	api.HeldBack:    http.StatusConflict,
	api.Invalid:     http.StatusUnprocessableEntity,
	api.Refused:     http.StatusForbidden,
	api.Full:        http.StatusTooManyRequests,
	api.Unsupported: http.StatusNotImplemented,
	api.Unknown:     http.StatusInternalServerError,
	api.Internal:    http.StatusInternalServerError,
}

// retryFull is after how many seconds a client that was too much may try again.
const retryFull = 1

// problemOf turns any error into a problem.
func problemOf(err error) *problem {
	var p *problem
	if errors.As(err, &p) {
		return p
	}
	var e *api.Error
	if !errors.As(err, &e) {
		return newProblem(http.StatusInternalServerError, api.Internal, err.Error())
	}
	status := statusOf[e.Code]
	if status == 0 {
		status = http.StatusInternalServerError
	}
	p = newProblem(status, e.Code, err.Error())
	if status == http.StatusTooManyRequests {
		p.retryAfter = retryFull
	}
	return p
}

func newProblem(status int, code api.Code, detail string) *problem {
	return &problem{Problem: api.Problem{Title: http.StatusText(status), Status: status, Code: code, Detail: detail}}
}

func refuse(code api.Code, text string) error { return &api.Error{Code: code, Text: text} }

// codeOf is the code of what net/http or huma refuse by themselves.
func codeOf(status int) api.Code {
	switch {
	case status == http.StatusNotFound:
		return api.NotFound
	case status == http.StatusForbidden, status == http.StatusUnauthorized:
		return api.Refused
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return api.Full
	case status >= 500:
		return api.Internal
	}
	return api.Invalid
}

// humaProblem is how huma says what is wrong with a request. It leaves out the
// values, which huma would send back: a body may hold secrets, and a megabyte.
func humaProblem(status int, message string, errs ...error) huma.StatusError {
	if status == http.StatusUnsupportedMediaType {
		return newProblem(status, api.Invalid, "the body's type is not JSON: send Content-Type: application/json")
	}
	p := newProblem(status, codeOf(status), message)
	var texts []string
	for _, err := range errs {
		if err == nil {
			continue
		}
		var own *problem
		var known *api.Error
		if errors.As(err, &own) || errors.As(err, &known) {
			return problemOf(err)
		}
		at := api.ProblemAt{Message: err.Error()}
		if d, ok := err.(huma.ErrorDetailer); ok {
			detail := d.ErrorDetail()
			at = api.ProblemAt{Location: detail.Location, Message: detail.Message}
		}
		p.Errors = append(p.Errors, at)
		texts = append(texts, strings.TrimPrefix(at.Location+": ", ": ")+at.Message)
	}
	if len(texts) > 0 {
		p.Detail = message + ": " + strings.Join(texts, "; ")
	}
	return p
}

func writeProblem(w http.ResponseWriter, err error) {
	p := problemOf(err)
	for name, values := range p.GetHeaders() {
		w.Header()[name] = values
	}
	writeJSON(w, problemType, p.Status, p)
}

// marshal is one line of JSON, in which < and & stay what they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

func writeJSON(w http.ResponseWriter, contentType string, status int, v any) {
	text, err := marshal(v)
	if err != nil {
		status, text = http.StatusInternalServerError, []byte(`{"title":"Internal Server Error","status":500,"code":"internal","detail":"the answer could not be written as JSON"}`+"\n")
		contentType = problemType
	}
	h := w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // a client that has gone needs no answer
}
