{{/*
A complete workload: configuration, pods, the Service of their monitoring ports, disruption budget, network policy and,
where it has a range of replicas, an autoscaler. Beside what isotherm.pod takes:
  kind            Deployment or StatefulSet
  replicas
  autoscaling     enabled, minReplicas, maxReplicas, targetCPUUtilizationPercentage
  alone           true: never two pods at the same time, not even during an update
  claimTemplates  of a StatefulSet
  podPorts        ports that pods of the same application may reach, beside the monitoring port
*/}}
{{- define "isotherm.workload" -}}
{{ include "isotherm.configMap" . }}
---
{{ include "isotherm.podsService" . }}
---
{{ include "isotherm.controller" . }}
---
{{ include "isotherm.disruptionBudget" . }}
{{- if .root.Values.networkPolicy.enabled }}
---
{{ include "isotherm.networkPolicy" . }}
{{- end }}
{{- if and .autoscaling .autoscaling.enabled }}
---
{{ include "isotherm.autoscaler" . }}
{{- end }}
{{- end -}}

{{- define "isotherm.controller" -}}
apiVersion: apps/v1
kind: {{ .kind }}
metadata:
  name: {{ .name }}
  labels: {{- include "isotherm.labels" . | nindent 4 }}
spec:
  {{- if not (and .autoscaling .autoscaling.enabled) }}
  replicas: {{ default 1 .replicas }}
  {{- end }}
  revisionHistoryLimit: 3
  {{- if eq .kind "StatefulSet" }}
  serviceName: {{ .name }}-pods
  podManagementPolicy: Parallel
  {{- else if .alone }}
  strategy:
    type: Recreate
  {{- else }}
  strategy:
    type: RollingUpdate
    rollingUpdate:
      maxUnavailable: 1
      maxSurge: 0
  {{- end }}
  selector:
    matchLabels: {{- include "isotherm.selectorLabels" . | nindent 6 }}
  template: {{- include "isotherm.pod" . | nindent 4 }}
  {{- with .claimTemplates }}
  volumeClaimTemplates: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}

{{/* It includes pods that are not ready: their metrics show the reason. */}}
{{- define "isotherm.podsService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}-pods
  labels: {{- include "isotherm.labels" . | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- include "isotherm.selectorLabels" . | nindent 4 }}
  ports:
    - name: monitoring
      port: 8080
      targetPort: monitoring
    {{- range .podPorts }}
    - name: {{ .name }}
      port: {{ .port }}
      targetPort: {{ .port }}
    {{- end }}
{{- end -}}

{{/* service: type, annotations, loadBalancerClass, loadBalancerSourceRanges. */}}
{{- define "isotherm.clientService" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ .name }}
  labels: {{- include "isotherm.labels" . | nindent 4 }}
  {{- with .service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .service.type }}
  {{- if ne .service.type "ClusterIP" }}
  externalTrafficPolicy: Local
  {{- end }}
  {{- with .service.loadBalancerSourceRanges }}
  loadBalancerSourceRanges: {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if .service.sticky }}
  sessionAffinity: ClientIP
  {{- end }}
  selector: {{- include "isotherm.selectorLabels" . | nindent 4 }}
  ports:
    {{- range .ports }}
    - name: {{ .name }}
      port: {{ .port }}
      targetPort: {{ .name }}
      protocol: {{ default "TCP" .protocol }}
    {{- end }}
{{- end -}}

{{- define "isotherm.disruptionBudget" -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  labels: {{- include "isotherm.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {{- include "isotherm.selectorLabels" . | nindent 6 }}
{{- end -}}

{{- define "isotherm.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ .name }}
  labels: {{- include "isotherm.labels" . | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: {{ .kind }}
    name: {{ .name }}
  minReplicas: {{ .autoscaling.minReplicas }}
  maxReplicas: {{ .autoscaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target:
          type: Utilization
          averageUtilization: {{ .autoscaling.targetCPUUtilizationPercentage }}
  behavior:
    # Each change of the number causes a rebalance of the group.
    scaleDown:
      stabilizationWindowSeconds: 600
{{- end -}}

{{- define "isotherm.networkPolicy" -}}
{{- $policy := .root.Values.networkPolicy -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ .name }}
  labels: {{- include "isotherm.labels" . | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- include "isotherm.selectorLabels" . | nindent 6 }}
  policyTypes: {{- ternary (list "Ingress" "Egress") (list "Ingress") (not (empty $policy.egress)) | toJson | nindent 4 }}
  ingress:
    - ports:
        - port: monitoring
      {{- with $policy.monitoring }}
      from: {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- with .ports }}
    - ports:
        {{- range . }}
        - port: {{ .name }}
          protocol: {{ default "TCP" .protocol }}
        {{- end }}
      {{- with $policy.clients }}
      from: {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
    {{- with .podPorts }}
    - ports:
        {{- range . }}
        - port: {{ .port }}
        {{- end }}
      from:
        - podSelector:
            matchLabels:
              spark-role: executor
    {{- end }}
  {{- with $policy.egress }}
  egress:
    - ports:
        - port: 53
          protocol: UDP
        - port: 53
          protocol: TCP
    {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
