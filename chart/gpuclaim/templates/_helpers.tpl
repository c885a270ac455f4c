{{/* What the names of the objects begin with. */}}
{{- define "gpuclaim.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The labels by which a component's pods are selected: (dict "root" . "component" "agent"). They never change. */}}
{{- define "gpuclaim.selectorLabels" -}}
app.kubernetes.io/name: gpuclaim
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* The labels of a component's objects: (dict "root" . "component" "agent"). */}}
{{- define "gpuclaim.labels" -}}
{{ include "gpuclaim.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "gpuclaim.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{- printf "%s@%s" .repository .digest -}}
{{- else -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gpuclaim.agent.name" -}}
{{ include "gpuclaim.fullname" . }}-agent
{{- end -}}

{{- define "gpuclaim.controller.name" -}}
{{ include "gpuclaim.fullname" . }}-controller
{{- end -}}

{{- define "gpuclaim.console.name" -}}
{{ include "gpuclaim.fullname" . }}-console
{{- end -}}

{{/* The Secret with the webhook's certificate; empty where the controller makes its own. */}}
{{- define "gpuclaim.controller.certificateSecret" -}}
{{- with .Values.controller.certificate -}}
{{- if .existingSecret -}}
{{- .existingSecret -}}
{{- else if .certManager.enabled -}}
{{- include "gpuclaim.controller.name" $ }}-webhook
{{- end -}}
{{- end -}}
{{- end -}}
