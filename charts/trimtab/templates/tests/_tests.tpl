{{/* Spec of a pod of `helm test`, without containers. Argument: list of root and service account, "" for the default. */}}
{{- define "trimtab.testPod" -}}
{{- $root := index . 0 -}}
restartPolicy: Never
{{- with index . 1 }}
serviceAccountName: {{ . }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with include "trimtab.pullSecrets" $root | trim }}{{ . | nindent 0 }}{{ end }}
{{- with include "trimtab.affinity" (list $root dict "") | trim }}{{ . | nindent 0 }}{{ end }}
{{- with include "trimtab.placement" (dict "nodeSelector" $root.Values.controller.nodeSelector "tolerations" $root.Values.controller.tolerations) | trim }}{{ . | nindent 0 }}{{ end }}
securityContext:
  {{- include "trimtab.restrictedPod" $root | nindent 2 }}
{{- end }}

{{/* Image and rights of its container. */}}
{{- define "trimtab.testContainer" -}}
image: {{ include "trimtab.image" (list . .Values.controller.image) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- include "trimtab.restrictedContainer" . | nindent 2 }}
{{- end }}
