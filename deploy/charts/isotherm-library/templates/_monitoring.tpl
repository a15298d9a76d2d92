{{/* The objects of a chart for Prometheus and Grafana that global.monitoring enables. */}}
{{- define "isotherm.monitoring" -}}
{{- $monitoring := .root.Values.global.monitoring -}}
{{- if $monitoring.serviceMonitor }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ .name }}
  labels:
    {{- include "isotherm.labels" . | nindent 4 }}
    {{- with $monitoring.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      app.kubernetes.io/component: {{ .root.Chart.Name }}
      app.kubernetes.io/instance: {{ .root.Release.Name }}
  endpoints:
    - port: monitoring
      path: /metrics
      interval: {{ $monitoring.interval }}
{{- end }}
{{- if $monitoring.rules }}
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: {{ .name }}
  labels:
    {{- include "isotherm.labels" . | nindent 4 }}
    {{- with $monitoring.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- .root.Files.Get "files/rules.yaml" | replace "docs/runbooks/" $monitoring.runbooks | nindent 2 }}
{{- end }}
{{- include "isotherm.dashboard" . }}
{{- end -}}

{{- define "isotherm.dashboard" -}}
{{- if .root.Values.global.monitoring.dashboards }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .name }}-dashboard
  labels:
    {{- include "isotherm.labels" . | nindent 4 }}
    {{- toYaml .root.Values.global.monitoring.dashboardLabels | nindent 4 }}
data:
  {{ .root.Chart.Name }}.json: |
    {{- .root.Files.Get "files/dashboard.json" | nindent 4 }}
{{- end }}
{{- end -}}
