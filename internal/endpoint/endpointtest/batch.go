package endpointtest

import "net/http"

// BatchRules say how the batch API behaves.
type BatchRules struct{}

type file struct{}
type batch struct{}

func (s *Server) batchRoutes(mux *http.ServeMux) {}
