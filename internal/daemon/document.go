package daemon

import (
	"encoding/json"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"hutch/internal/api"
	"hutch/internal/policy"
)

// maxBody is how many bytes a body of JSON may have.
const maxBody = 1 << 20

func init() {
	huma.NewError = humaProblem
	huma.NewErrorWithContext = func(_ huma.Context, status int, message string, errs ...error) huma.StatusError {
		return humaProblem(status, message, errs...)
	}
	huma.DefaultArrayNullable = false
	huma.ValidateStrictCasing = true
}

// policyDocument stands for policy.Policy in the OpenAPI document: its schema
// is the policy's own. huma only sees that it is an object, and policy.ParseJSON
// says what is wrong with it, as it does of a file.
type policyDocument struct{}

// Schema is the schema of a policy.
func (policyDocument) Schema(huma.Registry) *huma.Schema {
	var own map[string]any
	if err := json.Unmarshal(policy.Schema(), &own); err != nil {
		panic(err) // made from a table
	}
	for _, key := range []string{"$schema", "title", "type", "description"} {
		delete(own, key)
	}
	return &huma.Schema{Type: "object", Description: "what commands may do; see docs/policy.md", Extensions: own}
}

func schemaOf[T any](r huma.Registry) *huma.Schema {
	return r.Schema(reflect.TypeFor[T](), true, "")
}

func newAPI(mux *http.ServeMux, version string) huma.API {
	registry := huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer)
	registry.RegisterTypeAlias(reflect.TypeFor[policy.Policy](), reflect.TypeFor[policyDocument]())
	format := huma.Format{Marshal: huma.DefaultJSONFormat.Marshal, Unmarshal: json.Unmarshal}
	return humago.New(mux, huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{Title: "hutchd", Version: version, Description: "Boxes that live: create, exec, checkpoint, fork, commit. " +
				"Over the unix socket whoever may connect is who the daemon runs as; over TCP a bearer token is asked for."},
			Components: &huma.Components{
				Schemas:         registry,
				SecuritySchemes: map[string]*huma.SecurityScheme{"token": {Type: "http", Scheme: "bearer", Description: "over TCP only"}},
			},
			Security: []map[string][]string{{}, {"token": {}}},
		},
		Formats:                      map[string]huma.Format{"application/json": format, "json": format},
		RejectUnknownQueryParameters: true,
	})
}

// Which errors a kind of operation may answer beside 422 and 500.
var (
	ofDaemon = []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusServiceUnavailable}
	ofBox    = append(slices.Clone(ofDaemon), http.StatusNotFound, http.StatusConflict, http.StatusNotImplemented)
	ofLive   = append(slices.Clone(ofBox), http.StatusTooManyRequests)
)

// operation describes an endpoint. Its errors are added by huma.
func operation(method, path, id, summary string, errors []int) huma.Operation {
	op := huma.Operation{
		Method: method, Path: path, OperationID: id, Summary: summary, Errors: slices.Clone(errors),
		MaxBodyBytes: maxBody, BodyReadTimeout: -1, // the server sets its own deadlines: huma's would end the request
	}
	switch method {
	case http.MethodPost, http.MethodPut:
		op.Errors = append(op.Errors, http.StatusBadRequest, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType)
	}
	return op
}

// answers adds a success that huma cannot see in the types. The first is what
// huma takes for the usual one: else it adds another, which is never answered.
func answers(op huma.Operation, status, description string, content map[string]*huma.Schema) huma.Operation {
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	r := &huma.Response{Description: description, Content: map[string]*huma.MediaType{}}
	for kind, schema := range content {
		r.Content[kind] = &huma.MediaType{Schema: schema}
	}
	op.Responses[status] = r
	if op.DefaultStatus == 0 {
		op.DefaultStatus, _ = strconv.Atoi(status)
	}
	return op
}

func binary() *huma.Schema { return &huma.Schema{Type: "string", Format: "binary"} }
func text() *huma.Schema   { return &huma.Schema{Type: "string"} }

// documents serves the OpenAPI document in both forms; each is made once.
func (s *Server) documents(a huma.API) {
	asJSON := sync.OnceValues(func() ([]byte, error) { return json.Marshal(a.OpenAPI()) })
	asYAML := sync.OnceValues(func() ([]byte, error) { return a.OpenAPI().YAML() })
	serve := func(kind string, document func() ([]byte, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			text, err := document()
			if err != nil {
				writeProblem(w, err)
				return
			}
			w.Header().Set("Content-Type", kind)
			_, _ = w.Write(text)
		}
	}
	s.mux.HandleFunc("GET /openapi.json", serve("application/openapi+json", asJSON))
	s.mux.HandleFunc("GET /openapi.yaml", serve("application/openapi+yaml", asYAML))
}

// Document is the OpenAPI document, as JSON.
func (s *Server) Document() ([]byte, error) { return json.MarshalIndent(s.api.OpenAPI(), "", "  ") }

// streams is the document's schema of a stream of events.
func eventSchema(r huma.Registry) *huma.Schema { return schemaOf[api.Event](r) }
