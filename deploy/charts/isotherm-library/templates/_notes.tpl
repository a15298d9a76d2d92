{{- define "isotherm.notes" -}}
{{ .Chart.Name }} {{ .Chart.AppVersion }} as {{ include "isotherm.fullname" . }}

Are its pods ready, and if not, why?
  kubectl --namespace {{ .Release.Namespace }} get pods --selector app.kubernetes.io/instance={{ .Release.Name }},app.kubernetes.io/component={{ .Chart.Name }}
  kubectl --namespace {{ .Release.Namespace }} port-forward POD 8080, then: curl 127.0.0.1:8080/ready
{{- end -}}
